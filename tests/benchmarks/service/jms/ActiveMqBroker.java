import java.io.File;
import org.apache.activemq.broker.BrokerService;
import org.apache.activemq.store.kahadb.KahaDBPersistenceAdapter;

/** A broker of ActiveMQ Classic: arguments are its directory and its address. Says its settings when it can be used. */
public final class ActiveMqBroker {
    private ActiveMqBroker() {}

    public static void main(String[] arguments) throws Exception {
        KahaDBPersistenceAdapter store = new KahaDBPersistenceAdapter();
        store.setDirectory(new File(arguments[0]));
        BrokerService broker = new BrokerService();
        broker.setBrokerName("bench");
        broker.setUseJmx(false);
        broker.setPersistenceAdapter(store);
        broker.addConnector(arguments[1]);
        broker.start();
        broker.waitUntilStarted();
        System.out.println(
                "KahaDB, journalDiskSyncStrategy=" + store.getJournalDiskSyncStrategy()
                        + ", concurrentStoreAndDispatchQueues=" + store.isConcurrentStoreAndDispatchQueues());
        broker.waitUntilStopped();
    }
}
